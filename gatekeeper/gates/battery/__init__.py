"""The contract battery: what a server that speaks OpenAI's API promises, asked item by item."""
