"""Lock files of PyPI and npm projects, read as untrusted data into one form (PKG-5)."""
