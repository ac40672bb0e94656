"""The vault: secrets encrypted at rest, granted for named uses, leased for a time."""
