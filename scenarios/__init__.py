"""Named event files: one JSON event a line, as `oracle/events.py` defines them."""
