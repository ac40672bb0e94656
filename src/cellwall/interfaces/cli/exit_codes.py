"""Exit codes as the help of several commands lists them."""

CHANGE_EXIT_CODES = """
\b
Exit codes:
  0    done
  125  refused or failed, and nothing was changed; the reason is on standard error
"""

EXIT_CODES = """
\b
Exit codes:
  0    done
  125  refused or failed; the reason is on standard error
"""
