"""Why is it slow? From a receipt, the published figures and a look at the running kit: the causes, with their figures."""
