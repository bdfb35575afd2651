"""Files, folders, child processes and error reports: what every part asks of the operating system."""
