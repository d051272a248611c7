"""Where the jobs of a campaign are done: in this process, in several, or on the hosts of Ray.

An engine takes jobs and gives back what each came to, in the order in which they are done. It
knows neither cases nor verdicts: `opens` makes a function that does one job with ranks of its own.
"""
