"""What was read from a node: the agent's raw text, parsed by pure functions into frozen values. What is unknown is None."""
