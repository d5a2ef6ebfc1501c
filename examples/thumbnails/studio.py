"""The workers of the example: a photo comes in, a thumbnail goes out."""

import io
import time

from PIL import Image

import tidegate

app = tidegate.App()
SIZE = (96, 96)


@app.worker("photos", concurrency=1)
def make_thumbnail(photo: bytes, message: tidegate.Message) -> None:
    image = Image.open(io.BytesIO(photo))
    image.thumbnail(SIZE)
    time.sleep(0.05)  # stands for the megapixels that a real photo has
    small = io.BytesIO()
    image.save(small, "PNG")
    name = message.headers["name"]
    put = app.put("thumbnails", small.getvalue(), headers={"name": name}, dedup_id=name)
    app.wait(put)
