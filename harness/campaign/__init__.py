"""A campaign: what is asked for, judged, told, and put together from shards."""
