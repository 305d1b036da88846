"""Two to four real hosts on one machine: network namespaces, each with its own sshd, dockerd and file system view."""
