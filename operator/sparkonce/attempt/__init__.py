"""The core: one key from owned to finalized.

`request` answers a request before anything is written; `decide` (and `follow`, for an application that sparkonce did not start) names
the next action for an owned key; `drive` performs it; `observe`, `settle`, `settle_runs` and `probe` supply the evidence; `outcome`
builds the result. Runs the same under the operator and on a laptop: what differs (store, launcher, waiting) is passed in.
"""
