import witness  # noqa: F401, I001
import logging
import sys

print(logging.root.handlers, logging.root.level, logging.lastResort.level)
logging.warning("before a set-up: %s", sys.stderr.name)
logging.getLogger("user").info("not shown")
logging.basicConfig(level=logging.INFO, format="%(name)s %(lineno)d %(message)s", force=True)
logging.getLogger("user").info("shown")
