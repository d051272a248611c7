"""A rank's observations of a step: emitted tensors, collectives and gradients.

* `recorder` checks and keeps what the candidate emits; `learning` finds gradients that it did not
  emit.
* `witness` notes every collective and message as a *call*, on its way through torch's dispatcher;
  `activations` counts which of their bytes can be what attention exchanges.
* `flight_recorder` reads torch's own log, which also shows which collectives are done.
* `collectives` compares what ranks entered, in either of the two, and finds where they part.

Why there are two logs:

1. Calls are complete, and have the receiver of each part. Torch's log keeps the last entries only,
   and reading it takes time.
2. Torch's log distinguishes a finished collective from one that hangs; the dispatcher cannot.
3. A library may call a backend without the dispatcher; torch's log has these collectives as well.

Import from the modules: a controller reads collectives without torch.
"""
