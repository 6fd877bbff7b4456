"""What stands between a program and torch's attention.

    door_scoped, door_process_wide   the two ways in: ``SDPAGuard``, ``enable``
    dispatcher_hook                    what torch's dispatcher calls   (open_scopes: who judges)
    call_key                             recognises a call that was inside every bound before
    guarded_call                       one call from its arguments to its result:
    arguments                            reads what it is              (symbolic_sizes)
    torch_answers                        asks torch which backend takes it
    decision                             leaves, splits or refuses it: a pure function
    run_plan                             runs the chunks
    options, guard_memory            what a guard was asked to do, and what it remembers
    ledger, report, call_site          what it saw, and where          (messages)
    compile_caches, keep_eager       torch.compile: no stale code, and the guard is not compiled
    fork_safe                        locks and counters that a forked child can use

The file to edit when torch's internals change is ``torch_private``, beside this folder.
"""
