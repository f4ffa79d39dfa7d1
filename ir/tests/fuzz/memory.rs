//! Counts what this thread has allocated.
#![allow(unsafe_code)] // an allocator is

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes now, and the most there were.
    static BYTES: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

fn count(bytes: i64) {
    // A thread that ends frees what it has no counter for any more.
    let _ = BYTES.try_with(|cell| {
        let (now, most) = cell.get();
        cell.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: the system's allocator does the work; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Calls `f`, and says how many bytes it had allocated at most.
pub fn most_bytes<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let before = BYTES.get().0;
    BYTES.set((before, before));
    let result = f();
    (result, (BYTES.get().1 - before) as u64)
}

#[test]
fn counts_the_largest_sum() {
    let ((), bytes) = most_bytes(|| {
        let a = vec![0u8; 1000];
        drop((a.clone(), a));
        drop(vec![0u8; 500]);
    });
    assert_eq!(bytes, 2000);
}
