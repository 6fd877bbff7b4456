"""``probe``: the limits' boundaries, measured on this machine's GPU.

    recipes    how a call crosses each limit's bound
    shapes     which of those to try on this GPU, and what the registry predicts   (gpu_memory)
    runner     each of them in a process of its own                                (progress)
    process      starts one, waits, ends it                                        (gpu)
    child          answers in it: makes the step, and says what came of it
    step             the inputs, attention, the backward
    reference        what output and gradients should have been
    savefile   what was measured is not measured again
    outcome    the measurements beside the predictions

``trial`` is one step's facts, ``measurement`` the words in which its result is told. Imports go one
way, and the runner knows the child only by its name.
"""
