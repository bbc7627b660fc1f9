//! Monitor of QEMU (QMP), for commands whose response is awaited or ignored.

use crate::host_tools::{Context, Result};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for the removal of a disk. The guest must agree before a disk is removed from its PCI bus, and an
/// emulated guest is slow.
const DISK_REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the messages of QEMU are polled.
const MESSAGE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Connection to the QEMU Machine Protocol (QMP).
pub struct QemuMonitor {
    orders: Box<dyn Write + Send>,
    /// All messages of QEMU, in their order.
    messages: Arc<Mutex<Vec<Value>>>,
    command_count: u64,
}

impl QemuMonitor {
    pub fn new(orders: impl Write + Send + 'static, answers: impl Read + Send + 'static) -> QemuMonitor {
        let messages = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&messages);
        std::thread::spawn(move || {
            for line in BufReader::new(answers).lines().map_while(|line| line.ok()) {
                if let Ok(value) = serde_json::from_str(&line) {
                    listener.lock().unwrap_or_else(PoisonError::into_inner).push(value);
                }
            }
        });
        QemuMonitor { orders: Box::new(orders), messages, command_count: 0 }
    }

    /// Sends a command without waiting for its response.
    ///
    /// # Errors
    /// Fails if QEMU has exited.
    pub fn send_command(&mut self, order: &Value) -> Result<()> {
        // A repeated negotiation of capabilities fails, which has no consequences.
        let hello = json!({"execute": "qmp_capabilities"});
        writeln!(self.orders, "{hello}{order}").and_then(|()| self.orders.flush()).context("QEMU's monitor")
    }

    /// Sends a command, and waits until QEMU confirms it.
    ///
    /// # Errors
    /// Fails if QEMU refuses the command or does not respond. A refusal contains the error message of QEMU.
    pub fn execute_command(&mut self, command: &str, arguments: &Value) -> Result<()> {
        self.command_count += 1;
        let id = json!(format!("ask-{}", self.command_count));
        self.send_command(&json!({"execute": command, "arguments": arguments, "id": id}))?;
        let answer = self.wait_for(command, |message| message["id"] == id)?;
        match answer["error"]["desc"].as_str() {
            Some(words) => Err(format!("QEMU refuses {command} {arguments}: {words}")),
            None => Ok(()),
        }
    }

    /// Waits until QEMU reports that a device was removed.
    ///
    /// # Errors
    /// Fails if QEMU does not report this in time.
    pub fn wait_until_gone(&self, device: &str) -> Result<()> {
        let is_removal = |message: &Value| message["event"] == "DEVICE_DELETED" && message["data"]["device"] == device;
        self.wait_for(&format!("the removal of {device}"), is_removal).map(drop)
    }

    fn wait_for(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let patience = Instant::now() + DISK_REMOVAL_TIMEOUT;
        while Instant::now() < patience {
            let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(message) = messages.iter().rev().find(|message| is_wanted(message)) {
                return Ok(message.clone());
            }
            drop(messages);
            std::thread::sleep(MESSAGE_POLL_INTERVAL);
        }
        Err(format!("QEMU did not report {what}"))
    }
}

/// Tests a command that succeeds, a command that is refused, and the removal of a device.
pub fn self_test() {
    let (here, there) = std::os::unix::net::UnixStream::pair().expect("a socket");
    let mut monitor = QemuMonitor::new(here.try_clone().expect("a socket"), here);
    let qemu = std::thread::spawn(move || {
        let mut answers = there.try_clone().expect("a socket");
        for line in BufReader::new(there).lines().map_while(|line| line.ok()) {
            let (_, order) = line.split_at(line.find("}{").expect("two orders") + 1);
            let order: Value = serde_json::from_str(order).expect("an order");
            let id = &order["id"];
            writeln!(answers, "{}", json!({"error": {"desc": "negotiated already"}})).expect("sent");
            let answer = match order["execute"].as_str() {
                Some("device_del") => json!({"return": {}, "id": id}),
                _ => json!({"error": {"desc": "no such command"}, "id": id}),
            };
            writeln!(answers, "{answer}").expect("sent");
            let is_removal = json!({"event": "DEVICE_DELETED", "data": {"device": order["arguments"]["id"]}});
            writeln!(answers, "{is_removal}").expect("sent");
        }
    });
    monitor.execute_command("device_del", &json!({"id": "disk-vdb"})).expect("done");
    monitor.wait_until_gone("disk-vdb").expect("gone");
    let refused = monitor.execute_command("dance", &json!({})).expect_err("refused");
    assert!(refused.contains("dance") && refused.contains("no such command"), "{refused}");
    // The reading thread holds the socket open as well.
    drop((monitor, qemu));
}
