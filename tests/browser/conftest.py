"""A browser: its tests run where one is installed (``make browser``)."""

collect_ignore = ["drive.py"]  # runs in a process of its own
