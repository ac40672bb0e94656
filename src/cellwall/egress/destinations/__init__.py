"""What may be reached: names, addresses, rules, and the dialling of what was checked."""
