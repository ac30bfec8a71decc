"""`bench load`: requests that arrive at an engine, at this server or at another, and how soon each is answered."""
