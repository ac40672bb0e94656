"""What people do, not agents: policy files, approvals, skills, the vault, the audit log."""
