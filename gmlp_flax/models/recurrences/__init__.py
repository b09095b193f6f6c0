"""Linear recurrences over the tokens as pure functions, which keep a state of one size for any number
of tokens: the gated delta rule, semiseparable matrices, and diagonal state spaces. `chunks` and
`steps` have what they share."""
