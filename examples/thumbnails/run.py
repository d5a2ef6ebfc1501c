"""Image thumbnails on an elastic queue: a holiday's photos come at once, replicas come with them.

python examples/thumbnails/run.py [--out sheet.png]
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cluster import running_cluster, temporary_folder  # noqa: E402
from PIL import Image  # noqa: E402

import tidegate  # noqa: E402

PHOTOS = 240
COLUMNS = 20
# Machines are processes of this computer, and impatient, so that there is something to see.
SETTINGS = """
[fleet]
provider = "process"
slots = 2

[queues.photos]
replicas = { min = 1, max = 4 }
policy = "load"
min_load = 5
max_load = 20
polling_interval = "500ms"
inhibition = "1s"
cooldown_period = "2s"
worker = "studio:app"
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="a sheet with all thumbnails, as PNG")
    out = options.parse_args().out
    with temporary_folder() as folder:
        settings = folder / "tidegate.toml"
        settings.write_text(SETTINGS)
        with running_cluster(folder, HERE, "--config", str(settings)), tidegate.connect() as mq:
            mq.create_queue("thumbnails")
            photos = {f"{number:03}.png": photo(number) for number in range(PHOTOS)}
            until_a_replica_serves(mq)
            for name, image in photos.items():
                mq.put_soon("photos", image, headers={"name": name})
            mq.flush()
            print(f"{PHOTOS} photos are confirmed; one replica with one worker begins.")
            watch(mq)
            decisions = mq.explain("photos", count=50)
            added = [one for one in decisions if one.rule.startswith("avg_load >")]
            print(f"Why: {added[-1].reason}")
            sheet(mq, out)


def until_a_replica_serves(mq: tidegate.BlockingClient) -> None:
    deadline = time.monotonic() + 300
    while serving(mq) == 0:
        if time.monotonic() > deadline:
            raise SystemExit("no replica serves after five minutes")
        time.sleep(0.1)


def photo(number: int) -> bytes:
    """One of a kind, and quickly made."""
    gradient = Image.linear_gradient("L").resize((320, 240)).rotate(number * 7)
    flat = Image.new("L", gradient.size, number % 256)
    image = io.BytesIO()
    Image.merge("RGB", (gradient, flat, Image.radial_gradient("L").resize(gradient.size))).save(
        image, "PNG", compress_level=1
    )
    return image.getvalue()


def watch(mq: tidegate.BlockingClient) -> None:
    """A line whenever another number of replicas serves, until every thumbnail is there."""
    begun = time.monotonic()
    before = 0
    while (done := mq.stats("thumbnails").queue("thumbnails").waiting) < PHOTOS:
        now = serving(mq)
        if now != before:
            elapsed_s = time.monotonic() - begun
            print(f"{elapsed_s:5.1f} s  replicas that serve: {now}; thumbnails: {done}")
            before = now
        if time.monotonic() - begun > 300:
            raise SystemExit(f"{done} of {PHOTOS} thumbnails after five minutes")
        time.sleep(0.1)
    print(f"{time.monotonic() - begun:5.1f} s  all {PHOTOS} thumbnails are done")


def serving(mq: tidegate.BlockingClient) -> int:
    return sum(one.share > 0 for one in mq.topology("photos").replicas)


def sheet(mq: tidegate.BlockingClient, out: Path | None) -> None:
    """All thumbnails in one picture."""
    names = set()
    picture = Image.new("RGB", (COLUMNS * 100, -(-PHOTOS // COLUMNS) * 76), "white")
    for _ in range(PHOTOS):
        message = mq.get("thumbnails")
        number = int(message.headers["name"].partition(".")[0])
        names.add(number)
        place = (number % COLUMNS * 100, number // COLUMNS * 76)
        picture.paste(Image.open(io.BytesIO(message.payload)), place)
    assert names == set(range(PHOTOS)), "a photo is missing"
    if out is not None:
        picture.save(out)
        print(f"They are in {out}.")


if __name__ == "__main__":
    main()
