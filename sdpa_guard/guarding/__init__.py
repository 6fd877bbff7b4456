"""What stands between a program and torch's attention.

    door_scoped, door_process_wide   the two ways in: ``SDPAGuard``, ``enable``
    dispatcher_hook                    our kernel before torch's own  (open_scopes: who judges)
    signature                            was such a call inside every bound before?
    arguments                            what a call is               (symbolic_sizes)
    torch_answers                          which backend torch gives it to
    decision                             leave, split or refuse: a pure function
    carry_out                            does it: the one place that counts, warns, raises
    run_plan                               and runs the chunks
    options, guard_memory            what a guard was asked to do, and what it keeps
    report, call_site                  what it saw, and where         (messages)
    compile_caches, keep_eager       torch.compile: no stale code, none of ours compiled

The file to edit when torch's internals change is ``torch_private``, beside this folder.
"""
