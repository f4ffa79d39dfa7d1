//! A progress line on a terminal, for anything that takes over a second.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Shows what is being done, once a second has passed; nothing where standard error is no terminal.
pub struct Progress {
    sender: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts counting.
    pub fn start() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { sender: None, thread: None };
        }
        let (sender, receiver) = channel::<String>();
        let thread = std::thread::spawn(move || {
            let mut message = String::new();
            let started = std::time::Instant::now();
            let mut bar: Option<ProgressBar> = None;
            loop {
                match receiver.recv_timeout(Duration::from_millis(100)) {
                    Ok(next) => message = next,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if bar.is_none() && started.elapsed() > Duration::from_secs(1) {
                    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
                    bar = Some(ProgressBar::new_spinner());
                    if let (Some(bar), Ok(style)) = (&bar, style) {
                        bar.set_style(style);
                    }
                }
                if let Some(bar) = &bar {
                    bar.set_message(message.clone());
                    bar.tick();
                }
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        Self { sender: Some(sender), thread: Some(thread) }
    }

    /// Says what is being done now.
    pub fn say(&self, what: &str) {
        if let Some(sender) = &self.sender {
            // The thread only ends after the sender is dropped.
            let _ = sender.send(what.to_string());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
