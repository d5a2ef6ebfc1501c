// Asking again and again while a page is open; a fault is no reason to stop, the banner tells of it.

/** Do it now (a fault is the caller's) and then every so often until the signal. */
export async function every(pause_ms, signal, act) {
  await act();
  const again = async () => {
    if (signal.aborted) return;
    if (!document.hidden) {
      try { await act(); } catch (fault) { if (!("detail" in fault)) throw fault; }
    }
    if (!signal.aborted) setTimeout(again, pause_ms);
  };
  setTimeout(again, pause_ms);
}
