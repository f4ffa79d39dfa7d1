//! The file format: Chrome trace events in JSON, one a line.

use serde::Serialize;

/// A row of the picture: a thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// From when until when, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Start.
    pub start_us: f64,
    /// End.
    pub end_us: f64,
}

#[derive(Serialize)]
struct Event<'a, T> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<T>,
}

impl<'a, T> Event<'a, T> {
    const fn new(ph: &'static str, name: &'a str, row: Row) -> Self {
        let Row { pid, tid } = row;
        let (cat, ts, dur, id, bp, args) = (None, None, None, None, None, None);
        Self { name, cat, ph, ts, dur, pid, tid, id, bp, args }
    }
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u32,
}

/// A trace that is being written.
#[derive(Debug)]
pub struct Chrome {
    text: String,
    arrows: u64,
}

impl Chrome {
    /// One without events.
    pub fn new() -> Self {
        Self { text: "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [".to_string(), arrows: 0 }
    }

    /// Names a process; processes stand in the order of their numbers.
    pub fn process(&mut self, pid: u32, name: &str) -> serde_json::Result<()> {
        let row = Row { pid, tid: 0 };
        self.event(&Event { args: Some(Name { name }), ..Event::new("M", "process_name", row) })?;
        let args = Some(SortIndex { sort_index: pid });
        self.event(&Event { args, ..Event::new("M", "process_sort_index", row) })
    }

    /// Names a thread; threads stand in the order of their numbers.
    pub fn thread(&mut self, row: Row, name: &str) -> serde_json::Result<()> {
        self.event(&Event { args: Some(Name { name }), ..Event::new("M", "thread_name", row) })?;
        let args = Some(SortIndex { sort_index: row.tid });
        self.event(&Event { args, ..Event::new("M", "thread_sort_index", row) })
    }

    /// Something that takes some time.
    pub fn span(
        &mut self,
        row: Row,
        name: &str,
        category: &'static str,
        interval: Interval,
        args: impl Serialize,
    ) -> serde_json::Result<()> {
        let Interval { start_us, end_us } = interval;
        self.event(&Event {
            cat: Some(category),
            ts: Some(start_us),
            dur: Some((end_us - start_us).max(0.0)),
            args: Some(args),
            ..Event::new("X", name, row)
        })
    }

    /// An arrow from what runs in a row to what runs in another.
    pub fn arrow(
        &mut self,
        name: &str,
        from: (Row, Interval),
        to: (Row, Interval),
    ) -> serde_json::Result<()> {
        let id = Some(self.arrows);
        self.arrows += 1;
        let start_us = from.1.start_us;
        // An arrow ends at what encloses its end, which must not be before its start.
        let end_us = f64::midpoint(to.1.start_us.max(start_us), to.1.end_us.max(start_us));
        let event = |ph, row, ts| Event::<()> {
            cat: Some("transfer"),
            ts: Some(ts),
            id,
            ..Event::new(ph, name, row)
        };
        self.event(&event("s", from.0, start_us))?;
        self.event(&Event { bp: Some("e"), ..event("f", to.0, end_us) })
    }

    /// The whole file.
    pub fn finish(mut self) -> String {
        self.text.push_str("\n]}\n");
        self.text
    }

    fn event<T: Serialize>(&mut self, event: &Event<'_, T>) -> serde_json::Result<()> {
        self.text.push_str(if self.text.ends_with('[') { "\n" } else { ",\n" });
        self.text.push_str(&serde_json::to_string(event)?);
        Ok(())
    }
}
