"""Models written down for other tools: Murphi, TLA+, SMT-LIB."""
