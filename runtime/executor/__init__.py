"""Running a prepared step on a device."""
