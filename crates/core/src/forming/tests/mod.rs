//! Planted regions are found again, phases are followed, and nothing is found where nothing is.

mod nothing;
mod planted;
mod recovered;

use super::{Config, Forming, Hint, Kind, Program, TURN_NS, Touch};
use crate::ids::SpaceId;
