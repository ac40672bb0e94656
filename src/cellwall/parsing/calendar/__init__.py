"""Calendars: the XML of CalDAV and the iCalendar format, read within bounds and written. Pure."""
