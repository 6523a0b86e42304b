"""A real site: its policy, approvals, answers, stored state and lifetime privacy budget."""
