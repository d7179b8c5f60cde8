"""The configuration of a run: `schema` declares it, `parse` checks it, `files` finds and merges it,
`identity` says whether two configurations are the same experiment."""
