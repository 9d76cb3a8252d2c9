package jobs

// Crash ends the queue as kill -9 would: nothing that it holds is given back, and no row is written any more.
func (j *Jobs) Crash() {
	j.stopped.Do(func() {
		j.quit()
		j.abort(errLost)
		j.loops.Wait()
		j.workers.Wait()
	})
}
