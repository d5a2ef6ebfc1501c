"""Control loops: sense, decide by a law, act, and explain the decision."""
