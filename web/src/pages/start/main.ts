import { mount } from 'svelte';
import '../../lib/base.css';
import Start from './Start.svelte';

mount(Start, { target: document.getElementById('app')! });
