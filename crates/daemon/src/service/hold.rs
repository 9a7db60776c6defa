//! When nothing new is moved: others move memory here, programs wait for memory, no window is open.

use super::Service;
use crate::window::Instant;
use hither_core::engine::Standing;
use hither_linux::proc::pressure;
use hither_linux::rivals::{self, Rival};

impl Service {
    /// What changes seldom.
    pub(super) fn look(&mut self) {
        let tree = self.session.agent_mut().observer_mut().tree_mut();
        for pid in tree.renew_wishes() {
            (self.sink)(&format!(
                "process {pid} is left alone: its control group says so"
            ));
        }
        let root = &self.root;
        self.earlier.retain(|birth, _| birth.lives(root));
        let mut rivals = rivals::find(&self.root);
        // By hint faults hither watches by having the kernel's balancing on itself.
        if self.session.agent().observer().tracker_name() == "hintfault"
            && !self.rivals.contains(&Rival::NumaBalancing)
        {
            rivals.retain(|&rival| rival != Rival::NumaBalancing);
        }
        for &rival in rivals.iter().filter(|rival| !self.rivals.contains(rival)) {
            self.tell_rival(rival);
        }
        self.rivals = rivals;
    }

    pub(super) fn tell_rival(&self, rival: Rival) {
        if self.gives_way_to(rival) {
            (self.sink)(&format!(
                "{rival}: hither gives way, and moves nothing new; {}",
                rival.remedy()
            ));
        }
    }

    /// Is it a rival that was not taken over, and not what hither itself has switched on to watch?
    fn gives_way_to(&self, rival: Rival) -> bool {
        rival != Rival::NumaBalancing || self.taken_over.is_none()
    }

    /// May new moves be asked for?
    pub(super) fn hold_back(&mut self) {
        let mut reasons = Vec::new();
        for &rival in &self.rivals {
            if self.gives_way_to(rival) {
                reasons.push(rival.to_string());
            }
        }
        if let Ok(Some(pressure)) = pressure::machine(&self.root)
            && pressure.some.share_10s > self.config.memory_pressure
        {
            reasons.push("programs wait for memory (pressure stall)".to_owned());
        }
        if reasons != self.holding_back {
            match reasons.is_empty() {
                true => (self.sink)("moves go on"),
                false => (self.sink)(&format!("holding back: {}", reasons.join("; "))),
            }
        }
        let is_held = !reasons.is_empty();
        self.holding_back = reasons;
        let now = local_time();
        let config = &self.config;
        let agent = self.session.agent_mut();
        agent.engine_mut().hold(is_held);
        for seat in self.roll.seats() {
            agent
                .executor_mut()
                .set_dry(seat.scope, seat.is_dry(config));
            let engine = agent.engine_mut();
            match seat.rests(config, now) {
                true => engine.pause(seat.scope),
                false if engine.standing(seat.scope) == Some(Standing::Paused) => {
                    engine.resume(seat.scope);
                }
                false => {}
            }
        }
    }
}

pub(super) fn local_time() -> Instant {
    let now = jiff::ZonedDateTime::now();
    Instant {
        day: now.weekday().to_monday_zero_offset() as usize,
        minute: now.hour() as u32 * 60 + now.minute() as u32,
    }
}
