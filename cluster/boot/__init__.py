"""A start from the first container to ready: phases read from the ranks' logs, stalls, evidence, and the first questions asked."""
