"""User code whose import never ends."""

import logging
import threading

logging.getLogger(__name__).info("all is well")
threading.Event().wait()
