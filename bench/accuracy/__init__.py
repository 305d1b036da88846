"""How true and how cheap the benchmark's own client is: its figures against a server whose every send is known."""
