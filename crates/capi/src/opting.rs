//! What a program tells the daemon of itself. No mover is needed for it.

use crate::constants::{
    HITHER_ECONNREFUSED, HITHER_EINVAL, HITHER_EPERM, HITHER_HINT_COLD, HITHER_HINT_HOT,
    HITHER_HINT_NONE, HITHER_HINT_PIN_FAST, HITHER_HINT_PIN_SLOW, HITHER_OK,
};
use crate::failure::{Failure, Outcome, number};
use hither_core::declared::Hint;
use hither_linux::opting::{Answer, Opting, declare, default_socket, tell};
use std::ffi::{c_int, c_void};

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

/// Tells the daemon of `length` bytes from `start` on, of which the pages that lie wholly within count, for the
/// policy tiers. HITHER_HINT_HOT and HITHER_HINT_COLD are expectations: they count like evidence for 10 seconds,
/// then what is seen counts alone; declare them again at a new phase. HITHER_HINT_PIN_FAST and
/// HITHER_HINT_PIN_SLOW hold until HITHER_HINT_NONE takes them back. All ends with the address space, and with
/// the daemon. Blocks as hither_opt_out() does. Also in a child after fork(), which declares its own memory.
///
/// Returns 0, also where no target takes the process or its policy does not hear of tiers. Errors:
/// HITHER_EINVAL (no such hint, or the end is not in the address space), HITHER_ECONNREFUSED (no daemon answers),
/// HITHER_EPERM (it refuses: a process declares 4096 ranges at most).
#[unsafe(no_mangle)]
pub extern "C" fn hither_declare(start: *const c_void, length: u64, hint: u32) -> c_int {
    number(|| {
        let hint = match hint {
            HITHER_HINT_NONE => None,
            HITHER_HINT_HOT => Some(Hint::Hot),
            HITHER_HINT_COLD => Some(Hint::Cold),
            HITHER_HINT_PIN_FAST => Some(Hint::PinFast),
            HITHER_HINT_PIN_SLOW => Some(Hint::PinSlow),
            other => {
                let text = format!("there is no hint {other}; the hints are HITHER_HINT_*");
                return Err(Failure::new(HITHER_EINVAL, text));
            }
        };
        let start = start.addr();
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| start.checked_add(length));
        let Some(end) = end else {
            let text =
                format!("{length} bytes from {start:#x} on end outside of the address space");
            return Err(Failure::new(HITHER_EINVAL, text));
        };
        answered(declare(
            &default_socket(),
            std::slice::from_ref(&(start..end)),
            hint,
        ))
    })
}

fn told(opting: Opting) -> Outcome<c_int> {
    answered(tell(&default_socket(), opting))
}

fn answered(answer: hither_linux::Result<Answer>) -> Outcome<c_int> {
    match answer {
        Ok(Answer::Heard) => Ok(HITHER_OK),
        Ok(Answer::Refused(why)) => Err(Failure::new(HITHER_EPERM, why)),
        Err(error) => Err(Failure::new(HITHER_ECONNREFUSED, error.to_string())),
    }
}
