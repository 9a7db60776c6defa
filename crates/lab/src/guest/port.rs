//! The agent's end of the virtio-serial port.

use super::{Result, doing};
use crate::os::{self, Interest};
use crate::protocol::{self, Decoder, Frame, Kind};
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// How long the host may take to say goodbye.
const BYE_LIMIT: Duration = Duration::from_secs(10);

/// The port, with what has been read of it.
#[derive(Debug)]
pub struct Port {
    file: File,
    decoder: Decoder,
}

impl Port {
    /// Finds the port by its name and opens it.
    pub fn open() -> Result<Self> {
        let class = "/sys/class/virtio-ports";
        let ports =
            fs::read_dir(class).map_err(doing(format!("looking for the port in {class}")))?;
        for port in ports.flatten() {
            let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
            if name.trim() == protocol::PORT_NAME {
                let path = format!("/dev/{}", port.file_name().to_string_lossy());
                let file = OpenOptions::new().read(true).write(true).open(&path);
                let file = file.map_err(doing(format!("opening {path}")))?;
                return Ok(Self {
                    file,
                    decoder: Decoder::default(),
                });
            }
        }
        Err(format!(
            "no virtio port named {} in {class}",
            protocol::PORT_NAME
        ))
    }

    /// Sends one frame.
    pub fn send(&mut self, kind: Kind, run: u16, payload: &[u8]) -> Result<()> {
        self.file
            .write_all(&protocol::encode(kind, run, payload))
            .map_err(doing("sending to the host"))
    }

    /// Sends one frame of JSON.
    pub fn send_json(&mut self, kind: Kind, run: u16, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec(value).map_err(doing("writing JSON"))?;
        if text.len() > protocol::MAX_PAYLOAD_BYTES {
            return Err(format!(
                "a result of {} bytes is too long for one message",
                text.len()
            ));
        }
        self.send(kind, run, &text)
    }

    /// Sends one line for the person.
    pub fn notice(&mut self, text: &str) -> Result<()> {
        self.send(Kind::Notice, 0, text.as_bytes())
    }

    /// Reads what has come; call where the port is ready.
    pub fn receive(&mut self) -> Result<Vec<Frame>> {
        let mut buffer = [0; 8192];
        let count = os::read(self.fd(), &mut buffer).map_err(doing("reading from the host"))?;
        self.decoder.push(&buffer[..count]);
        let mut frames = Vec::new();
        while let Some(frame) = self
            .decoder
            .next_frame()
            .map_err(doing("reading from the host"))?
        {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Its descriptor, for poll.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Waits until the host has everything.
    pub fn wait_for_bye(&mut self) {
        let interest = [Interest {
            fd: self.fd(),
            write: false,
        }];
        while let Ok(ready) = os::wait(&interest, Some(BYE_LIMIT)) {
            if !ready[0].read {
                return;
            }
            match self.receive() {
                Ok(frames) if frames.iter().any(|frame| frame.kind == Kind::Bye) => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
