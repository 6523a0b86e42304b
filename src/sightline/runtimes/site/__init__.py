"""A real site: its policy, its process, what it stores, and the budget by which it answers."""
