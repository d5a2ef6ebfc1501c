"""User code that ends its process in its import, with a byte that no database keeps."""

import os
import sys

sys.stderr.buffer.write(b"oh no \x00 \xff\n")
sys.stderr.buffer.flush()
os._exit(4)
