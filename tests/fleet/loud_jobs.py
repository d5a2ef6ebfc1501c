"""User code that ends in its import, with a byte that no database keeps."""

import sys

sys.stderr.buffer.write(b"oh no \x00 \xff\n")
raise SystemExit(4)
