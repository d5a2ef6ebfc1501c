"""Documents as people might write them, most of them agreements: what properties are tried on."""

from __future__ import annotations

from hypothesis import strategies as st

from tidegate.agreements.document import toml_quoted

PERCENTILES = ("50", "90", "95", "99", "995", "999", "9999")
SECONDS = st.floats(1e-6, 1e7).map(lambda value: toml_quoted(f"{value:.6f}s")) | st.sampled_from(
    ['"250ms"', '"6s"', '"90s"', '"5m"', '"2h"']
)
BYTES = st.sampled_from(['"512MiB"', '"64MB"', '"1KiB"', "1", "9007199254740993"]) | st.integers(
    1, 10**15
).map(str)
NUMBERS = st.floats(1e-6, 1e12).map(repr) | st.integers(1, 10**9).map(str)
FRACTIONS = st.floats(1e-9, 1.0, exclude_max=True).map(repr)
MARGINS = st.integers(1, 99).map(lambda percent: f'"{percent}%"') | st.just('"learned"')
# Letters that XML may hold, and no space at the ends, which it does not keep.
PRINTED = st.from_regex(r"[a-zé<&\"'_.]([a-z *?>é-]{0,10}[a-z*])?", fullmatch=True).map(toml_quoted)
NAMES = st.text(min_size=1, max_size=40).filter(str.strip).map(toml_quoted)


@st.composite
def _metric(draw: st.DrawFn, name: str, quantity: st.SearchStrategy[str]) -> str:
    lines = [f"[metrics.{name}]", f"breach = {draw(quantity)}"]
    # A point of its own lies on the wrong side as often as not.
    warning = draw(st.one_of(st.none(), MARGINS, MARGINS, MARGINS, quantity))
    if warning is not None:
        lines.append(f"warning = {warning}")
    if draw(st.integers(0, 3)) == 0:
        lines.append(f"slope = {draw(quantity)}")
    return "\n".join(lines)


@st.composite
def documents(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> str:
    """A document: TOML always, and an agreement more often than not."""
    on_http = draw(st.booleans())
    lines = [f"name = {draw(names)}", f"{'http' if on_http else 'queue'} = {draw(names)}"]
    for key, quantity in (
        ("window", st.sampled_from(['"1s"', '"10s"', '"1.5s"', '"1m"', '"5m"', '"0.3d"'])),
        ("objective", st.floats(1e-3, 0.999).map(repr)),
        ("period", st.sampled_from(['"7d"', '"28d"', '"36h"', '"100000s"', '"90d"'])),
        ("replicas", st.sampled_from(["{ min = 1, max = 4 }", "{ max = 9 }", "{ min = 3 }"])),
        ("sla_delta", NUMBERS),
        ("capacity", NUMBERS),
        ("reconfiguration", st.sampled_from(['"1ms"', '"200us"', '"1s"'])),
        ("insufficient", st.sampled_from(['"refuse"', '"reduce"'])),
        ("load_max", NUMBERS),
    ):
        if draw(st.booleans()):
            lines.append(f"{key} = {draw(quantity)}")
    stems = ["response", "service", *([] if on_http else ["wait"])]
    metrics = {f"{stem}_p{digits}": SECONDS for stem in stems for digits in PERCENTILES}
    metrics |= {"throughput": NUMBERS, "free_memory": BYTES, "availability": FRACTIONS}
    if not on_http:
        metrics["oldest_age"] = SECONDS
    # Fewer are more often free of contradictions.
    some = st.lists(st.sampled_from(sorted(metrics)), min_size=1, max_size=3, unique=True)
    lines += [draw(_metric(name, metrics[name])) for name in draw(some)]
    return "\n".join(lines)
