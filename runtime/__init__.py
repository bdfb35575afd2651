"""Load artifacts, schedule requests and run compiled step programs."""
