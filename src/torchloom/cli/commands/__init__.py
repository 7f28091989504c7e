"""One module a verb, `cmd_VERB`, imported when the verb is used; each has a click command called
`command`..


"""
