package router

// Sanitize is sanitize, for its fuzz test.
var Sanitize = sanitize
