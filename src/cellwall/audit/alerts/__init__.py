"""Alerts from the audit log: rules over sliding windows, states, and messages to receivers."""
