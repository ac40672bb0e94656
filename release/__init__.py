"""What a release consists of: built, checked and tried; see docs/guides/contributing.md."""
