"""What commands have written, in a real Chromium: a page of the lab, and what was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from opened_pages import AnyHouse, serious_faults
from playwright.sync_api import Page, expect
from recorded_consumers import IDLE, record_consumers
from running_house import run_in
from waiting import eventually


@pytest.mark.timeout(300)
def test_a_page_of_the_lab_is_shown_with_its_figures(page: Page, people: AnyHouse) -> None:
    run_in(
        people.folder,
        *("lab", "run", "replicated-queues", "--simulate", "--only", "fig8"),
        *("--results", str(people.folder / "results"), "--name", "simulated"),
    )
    page.goto(f"{people.page}/#/experiments")
    page.get_by_role("navigation", name="Results").get_by_role("link").filter(
        has_text="simulated"
    ).click()
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", level=1)).to_be_visible()
    figure = frame.locator("figure img").first
    expect(figure).to_be_visible()
    box = figure.bounding_box()
    assert box is not None
    assert box["height"] > 100.0, "the figure itself, and not what stands for it"


# Of the points on the left, where the plant is linear: the part that lies at the curve.
_AT_THE_CURVE = """canvas => {
  const { width, height } = canvas, sharp = width / canvas.getBoundingClientRect().width;
  const ink = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  let points = 0, near = 0;
  const is = (x, y, blue) => {
    const at = 4 * (y * width + x), more = ink[at + 2] - ink[at];
    return ink[at + 3] > 150 && (blue ? more > 40 : more < -40);
  };
  for (let x = Math.round(60 * sharp); x < 0.38 * width; x += 1) {
    for (let y = 0; y < height - 36 * sharp; y += 1) {
      if (!is(x, y, true)) continue;
      points += 1;
      for (let d = Math.round(-14 * sharp); d <= 14 * sharp; d += 1) {
        if (y + d >= 0 && y + d < height && is(x, y + d, false)) { near += 1; break; }
      }
    }
  }
  return points && near / points;
}"""


@pytest.mark.timeout(300)
def test_models_page_shows_points_curve_and_reason(
    page: Page, people: AnyHouse, pictures: Path
) -> None:
    lake = people.folder / "recorded"
    group = record_consumers(lake)
    run_in(
        people.folder,
        *("learn", "--lake", str(lake), "--since", "9000d", "--only", "identification"),
        *("--knowledge", str(people.data / "knowledge")),
    )

    page.goto(f"{people.page}/#/models")
    accepted = page.locator("article", has_text=group)
    expect(accepted.locator(".light")).to_have_text("accepted")
    expect(accepted).to_contain_text("r2 test")
    chart = accepted.get_by_role("img", name="30 points and the fitted curve")
    expect(chart).to_be_visible()
    chart.scroll_into_view_if_needed()
    part = eventually(lambda: chart.evaluate(_AT_THE_CURVE), "points are drawn")
    assert part > 0.8, "the curve runs over them"

    refused = page.locator("article", has_text=IDLE)
    expect(refused.locator(".light")).to_have_text("refused")
    expect(refused).to_contain_text("the prefetch never changed")
    page.screenshot(path=pictures / "models-learned.png", full_page=True)
    assert serious_faults(page) == []
