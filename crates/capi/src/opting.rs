//! What a program tells the daemon of itself. No mover is needed for it.

use crate::constants::{HITHER_ECONNREFUSED, HITHER_EPERM, HITHER_OK};
use crate::failure::{Failure, Outcome, number};
use hither_linux::opting::{Answer, Opting, default_socket, tell};
use std::ffi::c_int;

/// Has the daemon leave this process alone until it ends, and the children that it makes from now on: no
/// page of theirs is moved. Pages that were moved stay where they are. Blocks until the daemon has answered,
/// 10 seconds at most. Also in a child after fork().
///
/// Returns 0. Errors: HITHER_ECONNREFUSED (no daemon answers), HITHER_EPERM (it refuses).
#[unsafe(no_mangle)]
pub extern "C" fn hither_opt_out() -> c_int {
    number(|| told(Opting::Out))
}

/// Lets the daemon look after this process: takes hither_opt_out() back, and is as HITHER=on in the
/// environment for targets with `opt_in = true`. Blocks as hither_opt_out() does.
///
/// Returns 0, also where no target takes the process. Errors: HITHER_ECONNREFUSED (no daemon answers),
/// HITHER_EPERM (HITHER=off is in the environment that this process was executed with, or its control group
/// says so).
#[unsafe(no_mangle)]
pub extern "C" fn hither_opt_in() -> c_int {
    number(|| told(Opting::In))
}

fn told(opting: Opting) -> Outcome<c_int> {
    match tell(&default_socket(), opting) {
        Ok(Answer::Heard) => Ok(HITHER_OK),
        Ok(Answer::Refused(why)) => Err(Failure::new(HITHER_EPERM, why)),
        Err(error) => Err(Failure::new(HITHER_ECONNREFUSED, error.to_string())),
    }
}
